"""Which names one table goes by: exports differ in case, in suffixes, and in what a table was called when."""

from __future__ import annotations

import re

_VERSION_SUFFIX = re.compile(r"_v\d+$")
_OTHER_NAMES = {
    "cupti_activity_kind_concurrent_kernel": "cupti_activity_kind_kernel",
    "cupti_activity_kind_memcpy2": "cupti_activity_kind_memcpy",
    "export_meta_data": "meta_data_export",
    "target_info_cuda_gpu": "target_info_gpu",
}
"""CUPTI has record kinds of their own for peer copies (MEMCPY2) and for kernels that may overlap; the metadata had
another name until 2022, and the GPUs had one until the middle of 2021."""


def canonical(table: str) -> str:
    """What all names of one table have in common: `CUPTI_ACTIVITY_KIND_KERNEL_V3` is CUPTI_ACTIVITY_KIND_KERNEL."""
    name = _VERSION_SUFFIX.sub("", table.casefold())
    return _OTHER_NAMES.get(name, name)
