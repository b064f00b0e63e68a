"""The hardware, asked in one place.

``probe`` looks once and returns a frozen description. Nothing here imports torch: on Linux the
kernel's own files say what is needed.
"""

from __future__ import annotations

from zse.device.probe import DeviceInfo, cuda_device_present, cuda_driver_present, probe

__all__ = ["DeviceInfo", "cuda_device_present", "cuda_driver_present", "probe"]
