"""What is a worker made of?"""

from workers.sdk.composition import assemble

__all__ = ["assemble"]
