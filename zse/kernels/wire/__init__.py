"""wire: rows of float32 in fewer bytes, for the way from one machine to another, and back.

``codec`` is a number of ``zse.mesh.codecs.Codec``. The bytes depend on the numbers alone, not on
the processor: what a standby is sent again is what the first one saw. Scales are bfloat16, one for
64 numbers (int8, int4) or for a row (fp8); four bits are of numbers that Hadamard's signs have
mixed, 64 at a time (arXiv:2506.01352).
"""
