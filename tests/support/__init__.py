"""What only this project's own tests and benches need: Java, C++ and Spark rigs, fakes, load."""
