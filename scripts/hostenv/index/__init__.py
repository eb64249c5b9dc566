"""Wheels by hash: from wherever they lie into a wheelhouse.

Needs nothing but the standard library, requests and truststore, :mod:`hostenv.errors` and the agent's
wheelhouse, since it runs on hosts too. :mod:`hostenv.index.session` is the one module that imports requests.
"""
