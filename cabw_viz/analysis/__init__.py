"""What can be said about a record from the record alone: records in, plain data out."""
