"""Which GPUs the portable kernels serve: plain Triton without Hopper instructions of ours.

Knows nothing of any particular operation.
"""

PORTABLE_ARCHS = ("sm90", "sm100", "sm103")


def refuses_arch(arch: str) -> str | None:
    """None if a portable kernel is compiled for this GPU, else why not.

    Args:
        arch: static fact `arch` of the device, as "sm90".
    """
    if arch in PORTABLE_ARCHS:
        return None
    return f"compiled for {', '.join(PORTABLE_ARCHS)}, not {arch}"
