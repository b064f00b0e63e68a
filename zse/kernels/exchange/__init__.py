"""exchange: sums and parts of several GPUs of one host, over memory that all of them write to."""
