"""Reference documentation made from the code, so that it cannot say anything else.

``python -m epp.reference docs`` writes it, ``--check`` says whether it is what the code says.
"""
