"""The quorum: KRaft in three processes, a sans-I/O core and the parts that touch the world."""
