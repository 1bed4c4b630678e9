"""The one segment format: log files and their neighbours as Kafka lays them out."""
