"""What a broker does as a master or as a slave of its group, and the change between the two."""
