"""Who captures shards beside this process: actors of a Ray cluster, each with an engine of its own.

Only ray_pool.py and ray_capture.py import ray. What crosses to an actor and back is plain dicts: messages.py.
"""
