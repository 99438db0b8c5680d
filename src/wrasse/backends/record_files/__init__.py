"""What records in a directory and in a bucket have in common: their bytes, their due buckets, their cursors."""
