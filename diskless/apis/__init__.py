"""A broker's requests, one module for each family: who answers, and with what.

Each module has one function that gives `{api key: Served}`; `diskless.dispatch` puts them together
and announces them.
"""
