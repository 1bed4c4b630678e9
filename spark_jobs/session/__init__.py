"""One Spark session and its JVM: found, started, shipped our modules, and its failures explained."""
