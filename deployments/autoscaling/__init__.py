"""How many replicas each pool gets: from the KV memory that requests need, not from how many there are."""
