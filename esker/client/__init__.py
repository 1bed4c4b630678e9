"""The Kafka client behind `esker produce`, `consume`, `topics` and the commands like them."""
