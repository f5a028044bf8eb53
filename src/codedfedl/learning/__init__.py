"""Mathematics of one model: features, codes, parity, gradients, sketches, steps."""
