"""The Python side of share.c: changes its tensor in place and publishes the sum."""

import numpy as np

import tensorcx as cx

pixels = np.asarray(cx.get("share/pixels", timeout=60))
pixels += 100
cx.put("share/sum", np.asarray(pixels.sum(dtype=np.float64)))
print("python saw", pixels.tolist())
