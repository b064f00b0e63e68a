"""Where bytes live: local folders and s3://, read in ranges, written whole or not at all."""
