"""What Model Explorer makes of models and node data; run by the Python of the environment that has it.

`explorer.py graphs MODEL` prints the nodes of each graph, with the names of what they compute. `explorer.py data
FILE...` reads node data with Model Explorer's own classes and prints it. `explorer.py serve PORT MODEL FILE...` serves
a page with both, whose query it prints.
"""

from __future__ import annotations

import json
import sys


def graphs(model: str) -> None:
    import ai_edge_model_explorer_adapter as adapter

    found = []
    for collection in json.loads(adapter.ConvertFlatbufferDirectlyToJson(adapter.VisualizeConfig(), model)):
        for graph in collection["subgraphs"]:
            nodes = []
            for node in graph["nodes"]:
                attributes = [a for output in node["outputsMetadata"] for a in output["attrs"]]
                names = [a["value"] for a in attributes if a["key"] == "tensor_name"]
                nodes.append({"id": node["id"], "label": node["label"], "names": names})
            found.append({"id": graph["id"], "nodes": nodes})
    print(json.dumps(found))


def data(files: list[str]) -> None:
    from model_explorer.node_data_builder import GradientItem, GraphNodeData, ModelNodeData, NodeDataResult

    found = []
    for file in files:
        with open(file) as content:
            read = json.load(content)
        made = {}
        for name, graph in read.items():
            results = {key: NodeDataResult(**result) for key, result in graph.pop("results").items()}
            gradient = [GradientItem(**stop) for stop in graph.pop("gradient", [])]
            made[name] = GraphNodeData(results=results, gradient=gradient, **graph)
        found.append(json.loads(ModelNodeData(graphsData=made).to_json_string()))
    print(json.dumps(found))


def serve(port: int, model: str, files: list[str]) -> None:
    import model_explorer

    config = model_explorer.config().add_model_from_path(model)
    for file in files:
        config.add_node_data_from_path(file)
    print("data=" + config.to_url_param_value(), flush=True)
    model_explorer.visualize_from_config(config, host="127.0.0.1", port=port, no_open_in_browser=True)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "graphs":
        graphs(*arguments)
    elif command == "data":
        data(arguments)
    else:
        serve(int(arguments[0]), arguments[1], arguments[2:])
