"""What does a process report about itself while it runs?"""
