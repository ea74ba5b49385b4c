"""How do the nodes of a cluster agree on who leads and on who lives?"""
