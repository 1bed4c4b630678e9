"""The Spark pipeline over the metadata log."""
