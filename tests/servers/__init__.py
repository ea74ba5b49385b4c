"""Which servers do the tests talk to, and where do these come from?"""
