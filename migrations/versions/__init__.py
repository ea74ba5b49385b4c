"""Which revisions are there?"""
