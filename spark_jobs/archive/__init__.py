"""Write the committed logs down as Avro files, exactly once, and verify them."""
