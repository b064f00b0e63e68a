"""zDeploy: from an image to an endpoint on a platform, by way of files that people can read.

A target turns options into a plan: what is created, on which GPU, for how much an hour, with which
secrets, and the files that say so in the platform's own language. Nothing here imports the server:
a platform starts the image, and the image knows what to do.
"""
