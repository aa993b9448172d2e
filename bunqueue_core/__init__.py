"""bunqueue: a job queue that needs nothing but a file, and grows to many brokers on one PostgreSQL."""

__version__ = "0.1.0"
