"""Which operation of the framework synchronized, by the native frames between CUDA and the Python interpreter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsys_sync.analysis.intervals import IntArray

PRINTING_FILE = "torch/_tensor_str.py"
PRINTING = "print(tensor)"


@dataclass(frozen=True)
class Rule:
    """`binding` is the frame through which Python entered the framework; `inner` must occur further in, if given."""

    operation: str
    binding: str
    inner: str | None = None


# First match wins. Frames as PyTorch 2.11 names them (captures of an H200, DESIGN.md section 1).
RULES: tuple[Rule, ...] = (
    Rule("tensor.tolist()", "THPVariable_tolist"),
    Rule("tensor.item()", "THPVariable_item"),
    Rule("float(tensor)", "THPVariable_float_scalar"),
    Rule("int(tensor)", "THPVariable_integral_scalar"),
    Rule("bool(tensor)", "THPVariable_is_nonzero"),
    Rule("bool(tensor)", "THPVariable_bool_scalar"),
    Rule("tensor[mask]", "THPVariable_getitem", "nonzero_cuda"),
    Rule("tensor[index]", "THPVariable_getitem"),
    Rule("tensor[mask] = …", "THPVariable_setitem", "nonzero_cuda"),
    Rule("tensor[index] = …", "THPVariable_setitem"),
    Rule("slice by a GPU index", "THPVariable_index_scalar", "_local_scalar_dense_cuda"),
    Rule("torch.nonzero()", "THPVariable_nonzero"),
    Rule("torch.masked_select()", "THPVariable_masked_select"),
    Rule("torch.unique()", "THPVariable__unique2"),
    Rule("torch.unique()", "THPVariable_unique_dim"),
    Rule("tensor.cpu()", "THPVariable_cpu"),
    Rule("tensor.cuda()", "THPVariable_cuda"),
    Rule("tensor.to()", "THPVariable_to"),
    Rule("torch.tensor(device=…)", "THPVariable_tensor"),
    Rule("torch.cuda.synchronize()", "THCPModule_cudaSynchronize"),
    Rule("event.synchronize()", "THCPEvent_synchronize"),
    Rule("stream.synchronize()", "THCPStream_synchronize"),
)
NEEDLES: tuple[str, ...] = ("THPVariable_", "THCP", *sorted({rule.inner for rule in RULES if rule.inner}))
"""What a symbol must contain to matter for any rule."""


def classify_chains(hits: pd.DataFrame, symbols: Mapping[int, str]) -> pd.Series[str]:
    """Chain id → operation, for the chains that a rule names.

    `hits` has chain_id, symbol_id, depth (0 is innermost) for every frame whose symbol contains one of NEEDLES. Only
    the innermost binding counts: outer ones belong to Python code that called into this operation.
    """
    symbol_ids, codes = np.array(list(symbols), dtype=np.int64), {}
    binding_of = {
        i: match.group() for i, name in symbols.items() if (match := re.search(r"\b(THPVariable|THCP)\w+", name))
    }
    names = sorted(set(binding_of.values()))
    codes = {i: names.index(name) for i, name in binding_of.items()}
    binding = pd.Series(codes, dtype="int64").reindex(hits["symbol_id"]).to_numpy()
    table = hits.assign(binding=binding)
    innermost = (
        table[~np.isnan(binding)].sort_values(["chain_id", "depth"], kind="stable").drop_duplicates("chain_id")
    ).set_index("chain_id")
    depth_limit = innermost["depth"].reindex(table["chain_id"]).to_numpy()
    inner = table[table["depth"].to_numpy() < depth_limit]

    chains = innermost.index.to_numpy()
    binding_name = np.array(names, dtype=object)[innermost["binding"].to_numpy().astype(np.int64)] if names else chains
    operation = np.full(len(chains), "", dtype=object)
    for rule in reversed(RULES):
        matches = binding_name == rule.binding
        if rule.inner is not None:
            needle = rule.inner
            with_needle = symbol_ids[[needle in symbols[int(i)] for i in symbol_ids]]
            matches = matches & np.isin(chains, inner["chain_id"].to_numpy()[np.isin(inner["symbol_id"], with_needle)])
        operation[matches] = rule.operation
    named: IntArray = np.flatnonzero(operation != "")
    return pd.Series(operation[named], index=chains[named], dtype=object)
