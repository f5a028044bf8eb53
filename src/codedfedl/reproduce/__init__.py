"""The paper's figures and Table 1, and the experiments that go beyond them."""
