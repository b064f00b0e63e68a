"""Several processes that compute one model together, one for each device, under one engine.

    rank 0: scheduler -> step --+--> its share of the step on device 0 -> tokens
                                |    (sums of all ranks, over what their devices share)
    rank 1..: <--- shared ring -+--> their shares on devices 1..

Rank 0 is the process of the engine. It starts the others, sends each step to all of them through
memory that they share, and watches them: one that ends, stops or fails ends them all.
"""
