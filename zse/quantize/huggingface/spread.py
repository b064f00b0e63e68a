"""A transformers model spread over several devices, as ``device_map`` and ``max_memory`` say.

Accelerate, which transformers does the same with, decides by sizes and moves what crosses from
device to device; packed layers are told here which GPU's kernels multiply them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from zse.errors import UsageError, needing
from zse.quantize.huggingface.kernels import open_kernels
from zse.quantize.huggingface.layers import ZSELinear

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from zse.format.reader import ZSEReader
    from zse.settings import Settings

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
DeviceMap: TypeAlias = "str | Mapping[str, int | str | torch.device]"


def devices_of(
    model: Any, device_map: DeviceMap, max_memory: Mapping[int | str, int | str] | None = None
) -> dict[str, Any]:
    """Return the device of each part of a model, by the part's name.

    Args:
        model: A transformers model, filled.
        device_map: ``auto`` and ``balanced`` share it out evenly among the GPUs, ``balanced_low_0``
            leaves room on the first, ``sequential`` fills one after the other; or parts' names with
            their devices.
        max_memory: Bytes, or texts as ``"20GiB"``, that each may take, by a GPU's number or
            ``cpu``.

    Raises:
        UsageError: The words are not known, a part has no device, or the model does not fit.
        MissingDependencyError: accelerate is not installed.
    """
    with needing("hf", "device_map"):
        from accelerate import infer_auto_device_map
        from accelerate.utils import check_device_map, get_balanced_memory, get_max_memory
    if not isinstance(device_map, str):
        found = dict(device_map)
        try:
            check_device_map(model, found)
        except ValueError as error:
            raise UsageError(f"device_map leaves a part out: {error}") from error
        return _checked(found)
    if device_map not in DEVICE_MAPS:
        raise UsageError(
            f"device_map is {device_map!r}",
            hint=f"Use {', '.join(DEVICE_MAPS)}, or names of parts with their devices.",
        )
    whole = list(getattr(model, "_no_split_modules", None) or ())
    limits = dict(max_memory) if max_memory is not None else None
    if device_map == "sequential":
        limits = get_max_memory(limits)
    else:
        low = device_map == "balanced_low_0"
        limits = get_balanced_memory(model, limits, no_split_module_classes=whole, low_zero=low)
    return _checked(infer_auto_device_map(model, limits, no_split_module_classes=whole))


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    left = [name for name, device in found.items() if str(device) == "disk"]
    if left:
        raise UsageError(
            f"{', '.join(left[:3])} of the model fit into no device's memory",
            hint="Raise max_memory, name more devices, or serve it: layers stream there.",
        )
    return found


def spread(model: Any, devices: Mapping[str, Any], reader: ZSEReader, settings: Settings) -> Any:
    """Return a model whose parts are on their devices; each GPU has kernels of its own.

    Args:
        model: On the CPU.
        devices: Of ``devices_of``.
        reader: The model's open file, which may bring kernels.
        settings: Where else they may lie.
    """
    with needing("hf", "device_map"):
        from accelerate import dispatch_model
    # A part that stays on the CPU beside GPUs goes to one for each pass, packed as it is.
    model = dispatch_model(model, device_map=dict(devices), offload_buffers=True, force_hooks=True)
    kernels: dict[torch.device, Any] = {}
    for module in model.modules():
        if not isinstance(module, ZSELinear):
            continue
        device = module.weight.device
        if device.type == "cuda":
            if device not in kernels:
                kernels[device] = open_kernels(device, reader, settings)
            module.use(kernels[device])
    return model
