"""Plain PySpark: read a topic into a DataFrame, count, and write the counts to another topic.

NAMESRV_ADDR=127.0.0.1:9876 python examples/spark_batch.py
"""

import os

from pyspark.sql import functions as f

from goddard import Message, Producer
from goddard.spark import spark_session

SERVERS = os.environ["NAMESRV_ADDR"]

with Producer("spark_example") as producer:
    orders = [Message("TopicSpark", b"{}", tags=("new", "paid")[n % 2]) for n in range(100)]
    producer.send_batch(orders)

spark = spark_session("local[2]")  # any SparkSession works
options = {"nameServers": SERVERS, "subscribe": "TopicSpark"}
counts = spark.read.format("rocketmq").options(**options).load().groupBy("tags").count()
for row in counts.orderBy("tags").collect():
    print(f"{row['tags']}: {row['count']}")

rows = counts.select(f.col("count").cast("string").alias("body"), f.col("tags").alias("keys"))
writer = rows.write.format("rocketmq").mode("append")
writer.options(nameServers=SERVERS, topic="TopicSparkCounts").save()
spark.stop()
