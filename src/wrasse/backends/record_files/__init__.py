"""What records in a directory and on S3 have in common: their bytes, their due buckets, their cursors."""
