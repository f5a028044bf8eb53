"""Private sums: fixed-point numbers under masks, the helper that removes them, and the accountant.

`fixed_point` and `accounting` need nothing but NumPy and SciPy; `masks`, where the helper is, needs
the package `cryptography`, which the extras ``privacy`` and ``flower`` bring.
"""
