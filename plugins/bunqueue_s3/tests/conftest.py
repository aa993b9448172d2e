"""The S3 server of these tests."""

from s3_buckets import bucket_names, moto_url, new_bucket

__all__ = ["bucket_names", "moto_url", "new_bucket"]
