"""The Spark session and its JVM: settings, start, shipping our modules, and failures explained."""
