"""The S3 servers of these tests."""

from s3_buckets import bucket_names, moto_url, new_bucket, strict

__all__ = ["bucket_names", "moto_url", "new_bucket", "strict"]
