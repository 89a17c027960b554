"""Calls a service with OpenAI's client and LangChain, and prints the results as JSON; run by the
Python of their environment.

Usage: client.py URL KEY
"""

import asyncio
import json
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

URL, KEY = sys.argv[1:]
MORE = {"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 2, "timeout": 20}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def said(text, **more):
    return {"model": "words", "messages": [{"role": "user", "content": text}], **more}


def of_error(error):
    return {
        "class": type(error).__name__,
        "code": error.code,
        "param": error.param,
        "type": error.type,
        "message": error.message,
    }


def failing(call, *args, **more):
    try:
        for _ in call(*args, **more):
            pass
    except openai.APIError as error:
        return of_error(error)
    return None


def chunks_of(stream):
    return [each.model_dump(exclude_unset=True) for each in stream]


def chats(client):
    create = client.chat.completions.create
    with client.chat.completions.stream(**said("one two")) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message.content
    return {
        "whole": create(**said("one two")).model_dump(exclude_unset=True),
        "chunks": chunks_of(
            create(**said("one two"), stream=True, stream_options={"include_usage": True})
        ),
        "limited": create(**said("a b c", max_completion_tokens=2)).choices[0].finish_reason,
        "helper": [kinds[0], kinds[-1], final],
    }


def tools(client):
    create = client.chat.completions.create
    request = {**said("weather?"), "model": "tools", "tools": [TOOL]}
    message = create(**request).choices[0].message
    messages = [
        *request["messages"],
        message,
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"},
    ]
    return {
        "call": message.tool_calls[0].model_dump(),
        "chunks": chunks_of(create(**request, stream=True)),
        "answer": create(**{**request, "messages": messages}).choices[0].message.content,
    }


def embeddings(client):
    create = client.embeddings.create
    return {
        "default": [each.embedding for each in create(model="words", input=["a b", "c"]).data],
        "float": create(model="words", input="a b", encoding_format="float").data[0].embedding,
        "usage": create(model="words", input="a b").usage.total_tokens,
        "tokens": failing(create, model="words", input=[1, 2]),
    }


def errors(client):
    create = client.chat.completions.create
    wrong_key = client.with_options(api_key="wrong").chat.completions.create
    return {
        "no model": failing(create, **{**said("a"), "model": "nope"}),
        "no key": failing(wrong_key, **said("a")),
        "wrong": failing(create, **said("a", temperature="warm", max_tokens="many")),
        "function": failing(create, **said("fail")),
        "in the middle": failing(create, **said("one fail two", stream=True)),
        "before": failing(create, **said("fail", stream=True)),
        "several": failing(create, **said("a", n=2)),
    }


async def asynchronous():
    async with openai.AsyncOpenAI(**MORE) as client:
        create = client.chat.completions.create
        whole = await create(**said("one two"))
        texts = [
            each.choices[0].delta.content async for each in await create(**said("a b", stream=True))
        ]
        left = await create(**{**said("a"), "model": "endless"}, stream=True)
        async for _ in left:
            break
        await left.close()
        try:
            async for _ in await create(**said("one fail two", stream=True)):
                pass
        except openai.APIError as error:
            failed = of_error(error)
    return {"whole": whole.choices[0].message.content, "texts": texts, "in the middle": failed}


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def langchain():
    more = {"base_url": f"{URL}/v1", "api_key": KEY, "timeout": 20}
    chat = ChatOpenAI(model="words", max_tokens=5, **more)
    pieces = list(chat.stream("one two three", stream_usage=True))
    with_tools = ChatOpenAI(model="tools", **more).bind_tools([weather])
    asked = with_tools.invoke("weather?")
    streamed = None
    for each in with_tools.stream("weather?"):
        streamed = each if streamed is None else streamed + each
    called = weather.invoke(asked.tool_calls[0])
    assert isinstance(called, ToolMessage)
    answer = with_tools.invoke([HumanMessage("weather?"), asked, called])
    assert isinstance(answer, AIMessage)
    embeddings = OpenAIEmbeddings(model="words", check_embedding_ctx_length=False, **more)
    return {
        "embeddings": embeddings.embed_documents(["a b", "c"]),
        "embedding": embeddings.embed_query("a b"),
        "whole": chat.invoke("one two").content,
        "tokens": chat.invoke("one two").usage_metadata["total_tokens"],
        "pieces": [each.content for each in pieces],
        "tokens of pieces": sum(
            each.usage_metadata["output_tokens"] for each in pieces if each.usage_metadata
        ),
        "calls": [[each["name"], each["args"]] for each in asked.tool_calls],
        "calls of pieces": [[each["name"], each["args"]] for each in streamed.tool_calls],
        "answer": answer.content,
        "asynchronous": asyncio.run(chat.ainvoke("one two")).content,
        "batch": [each.content for each in chat.batch(["a", "b", "c"])],
    }


def main():
    with openai.OpenAI(**MORE) as client:
        found = {
            "models": [each.id for each in client.models.list()],
            "model": client.models.retrieve("words").model_dump(),
            "chats": chats(client),
            "tools": tools(client),
            "embeddings": embeddings(client),
            "completion": client.completions.create(model="words", prompt="ab").choices[0].text,
            "completion, chunks": [
                each.choices[0].text
                for each in client.completions.create(model="words", prompt="ab", stream=True)
            ],
            "errors": errors(client),
            "asynchronous": asyncio.run(asynchronous()),
            "langchain": langchain(),
        }
    print(json.dumps(found))


main()
