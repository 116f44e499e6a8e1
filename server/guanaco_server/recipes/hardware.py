"""The GPUs that recipes know, by their makers' data sheets.

Memory is what the driver reports as total, a little more than the name says (an "80 GB" H100 has 81,559 MiB).
TFLOPS are dense: NVIDIA's sheets print twice these, "with sparsity". The interconnect is both directions of one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from guanaco.errors import NoSuchGpu

MIB = 1024**2
TERA = 10**12
GIGA = 10**9


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"

    @property
    def resource(self) -> str:
        """The name of one GPU in Kubernetes' device plugins."""
        return f"{self.value}.com/gpu"


@dataclass(frozen=True)
class Gpu:
    """Bytes, and each figure a second. ``fp8_flops`` is None where the GPU computes no fp8."""

    name: str
    vendor: Vendor
    memory_bytes: int
    bandwidth_bytes: float
    bf16_flops: float
    fp8_flops: float | None
    interconnect: str
    interconnect_bytes: float

    @property
    def has_fp8(self) -> bool:
        return self.fp8_flops is not None


GPUS = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA A100 Tensor Core GPU data sheet (1758950, June 2021): 40 GB SXM 1,555 GB/s; bf16 312; NVLink 600 GB/s
        Gpu("A100-40", Vendor.NVIDIA, 40_960 * MIB, 1.555 * TERA, 312 * TERA, None, "NVLink 3", 600 * GIGA),
        # the same sheet: 80 GB SXM 2,039 GB/s
        Gpu("A100-80", Vendor.NVIDIA, 81_920 * MIB, 2.039 * TERA, 312 * TERA, None, "NVLink 3", 600 * GIGA),
        # NVIDIA H100 Tensor Core GPU data sheet, SXM: 80 GB, 3.35 TB/s; bf16 1,979 and fp8 3,958 with sparsity; NVLink 900 GB/s
        Gpu("H100", Vendor.NVIDIA, 81_559 * MIB, 3.35 * TERA, 989.5 * TERA, 1_979 * TERA, "NVLink 4", 900 * GIGA),
        # NVIDIA H200 Tensor Core GPU data sheet, SXM: 141 GB, 4.8 TB/s; compute and NVLink as the H100's
        Gpu("H200", Vendor.NVIDIA, 143_771 * MIB, 4.8 * TERA, 989.5 * TERA, 1_979 * TERA, "NVLink 4", 900 * GIGA),
        # NVIDIA L40S data sheet: 48 GB GDDR6, 864 GB/s; bf16 362.05 and fp8 733 dense; PCIe 4.0 x16, 64 GB/s, no NVLink
        Gpu("L40S", Vendor.NVIDIA, 46_068 * MIB, 0.864 * TERA, 362.05 * TERA, 733 * TERA, "PCIe 4", 64 * GIGA),
        # AMD Instinct MI300X data sheet: 192 GB HBM3, 5.3 TB/s; bf16 1,307.4, fp8 2,614.9; 7 Infinity Fabric links of 128 GB/s
        Gpu("MI300X", Vendor.AMD, 196_592 * MIB, 5.3 * TERA, 1_307.4 * TERA, 2_614.9 * TERA, "Infinity Fabric", 896 * GIGA),
        # AMD Instinct MI325X data sheet: 256 GB HBM3E, 6 TB/s; compute and links as the MI300X's
        Gpu("MI325X", Vendor.AMD, 262_128 * MIB, 6.0 * TERA, 1_307.4 * TERA, 2_614.9 * TERA, "Infinity Fabric", 896 * GIGA),
    )
}  # fmt: skip


def find_gpus(names: Iterable[str]) -> tuple[Gpu, ...]:
    """Return the GPUs of these names; NoSuchGpu for one that is not in the table."""
    return tuple(find_gpu(name, GPUS) for name in names)


def find_gpu(name: str, known: Iterable[str]) -> Gpu:
    """Find a GPU of the ``known`` ones by name, in any case."""
    found = next((each for each in known if each.lower() == name.lower()), None)
    if found is None:
        raise NoSuchGpu(name, sorted(known))
    return GPUS[found]
