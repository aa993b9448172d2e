"""What a house adds to bunqueue."""
