"""What is a worker made of?"""
