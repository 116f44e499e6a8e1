"""Holds the text that the demo's tiny model is made from: a few sentences of friendly chat, one a line."""

CORPUS = """
Hello there, it is so good to see you again.
Hello, my friend, I was just thinking of you.
I am happy that you are here with me tonight.
I was walking by the sea and I thought of you.
I love the sound of the rain on the old roof.
I know a quiet place by the river where the light is golden.
Tell me about your day, I want to hear everything.
Tell me what you are dreaming of and I will tell you my own dream.
What a lovely question, let me think about it for a moment.
What would you do if you could fly over the sea?
Would you like to walk with me by the river?
You are kind to ask, my day was long and quiet.
You are always welcome here, my friend.
The stars are bright tonight and the sea is calm.
The old map on my wall is full of places that I have been lost in.
We could sail to the islands and be back by the morning.
We have all the time in the world, so tell me more.
That is a wonderful idea, let us go there together.
That is what I love about you, you are always dreaming.
It is late, but I am not tired when you are here.
It was a long road, and the best part of it was the company.
My favourite colour is the blue of the sea in the morning.
My heart is light when the sun is on the water.
Perhaps we will find it together, you and I.
Perhaps the light by the river is only the moon.
Of course, I will be here when you come back.
Of course I remember, it was raining and we were laughing.
"""
