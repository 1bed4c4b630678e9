"""The Kafka-protocol broker over object storage."""
