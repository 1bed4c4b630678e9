"""Kafka Connect, MirrorMaker and Kafka Streams on a cluster of ours."""
