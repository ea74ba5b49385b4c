"""Which work does the service do?"""
