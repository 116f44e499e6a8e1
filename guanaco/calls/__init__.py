"""Every call of the HTTP API, defined once: what is sent and what comes back.

These are pure functions. ``Client`` and ``AsyncClient`` turn each of them into a method with the same
arguments, which sends it.
"""
