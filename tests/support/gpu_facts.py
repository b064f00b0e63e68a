"""What is known of some GPUs, for tests that have none."""

from zse.device.facts_of_gpus import A100, H200, L4

__all__ = ["A100", "H200", "L4"]
