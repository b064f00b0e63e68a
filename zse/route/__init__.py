"""A router of replicas: one address in front of many servers of the same models."""
