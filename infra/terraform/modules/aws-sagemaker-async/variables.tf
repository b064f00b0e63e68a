variable "name" {
  type        = string
  description = "Name of the endpoint; also of what belongs to it. The region is the provider's."
  default     = "zse"

  validation {
    condition     = can(regex("^[A-Za-z0-9]([A-Za-z0-9-]{0,38}[A-Za-z0-9])?$", var.name))
    error_message = "The name has letters, digits and dashes, 40 characters at most."
  }
}

variable "image" {
  type        = string
  description = "Image that zse build-image wrote, in ECR of the same region."

  validation {
    condition     = can(regex("^[0-9]{12}\\.dkr\\.ecr\\.[a-z0-9-]+\\.amazonaws\\.com(\\.cn)?/[^\\s]+$", var.image))
    error_message = "SageMaker pulls from ECR: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG."
  }
}

variable "model_url" {
  type        = string
  description = "Address that the server streams the model from, such as s3://BUCKET/KEY, without a copy on disk. Empty: model_prefix or the image."
  default     = ""

  validation {
    condition     = var.model_url == "" || can(regex("^(s3|hf|https)://[^\\s]+$", var.model_url))
    error_message = "A model address begins with s3://, hf:// or https://."
  }
}

variable "model_prefix" {
  type        = string
  description = "s3://BUCKET/PREFIX/ that SageMaker copies to /opt/ml/model before the start. Empty: none."
  default     = ""

  validation {
    condition     = var.model_prefix == "" || can(regex("^s3://[a-z0-9.-]+/([^\\s]*/)?$", var.model_prefix))
    error_message = "A prefix is written as s3://BUCKET/PREFIX/, with a slash at the end."
  }
}

variable "model_file" {
  type        = string
  description = "Name of the .zse file below model_prefix."
  default     = "model.zse"

  validation {
    condition     = can(regex("^[^/\\s][^\\s]*\\.zse$", var.model_file)) && !strcontains(var.model_file, "..")
    error_message = "The model file is a relative path that ends with .zse."
  }
}

variable "gpu_type" {
  type        = string
  description = "Instance type with an A10G (ml.g5), L4 (ml.g6), L40S (ml.g6e), A100 (ml.p4d) or H100 (ml.p5)."
  default     = "ml.g6.xlarge"

  validation {
    condition     = can(regex("^ml\\.(g5|g6|g6e|p4d|p4de|p5|p5e|p5en|p6-b200)\\.[0-9]*x?large$", var.gpu_type))
    error_message = "Use an ml.g5, ml.g6, ml.g6e, ml.p4 or ml.p5 instance: older GPUs lack compute capability 8.0."
  }
}

variable "output_bucket" {
  type        = string
  description = "Bucket that gets the answers, under NAME/out/ and NAME/failed/; the questions may lie there too."

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.output_bucket))
    error_message = "output_bucket is a bucket's name, without s3://."
  }
}

variable "role_arn" {
  type        = string
  description = "Execution role. Empty: the module makes one that may read the image, model and questions, and write answers and logs."
  default     = ""

  validation {
    condition     = var.role_arn == "" || can(regex("^arn:[^:]+:iam::[0-9]{12}:role/", var.role_arn))
    error_message = "A role is written as arn:aws:iam::ACCOUNT:role/NAME."
  }
}

variable "min_instances" {
  type        = number
  description = "Instances that never sleep. 0 scales to zero."
  default     = 0

  validation {
    condition     = var.min_instances >= 0 && floor(var.min_instances) == var.min_instances
    error_message = "min_instances is a whole number, 0 or more."
  }
}

variable "max_instances" {
  type        = number
  description = "Instances at most; your quota for the instance type bounds it too."
  default     = 1

  validation {
    condition     = var.max_instances >= 1 && floor(var.max_instances) == var.max_instances
    error_message = "max_instances is a whole number, 1 or more."
  }
}

variable "concurrency" {
  type        = number
  description = "Requests that one instance works on at a time."
  default     = 16

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000
    error_message = "SageMaker allows 1 to 1000 requests an instance."
  }
}

variable "backlog_per_instance" {
  type        = number
  description = "Waiting requests for each instance before another is started."
  default     = 5

  validation {
    condition     = var.backlog_per_instance > 0
    error_message = "backlog_per_instance is above 0."
  }
}

variable "idle_seconds" {
  type        = number
  description = "Between two steps down, so also before the last instance goes."
  default     = 300

  validation {
    condition     = var.idle_seconds >= 60
    error_message = "The metrics have one point a minute: idle_seconds is 60 or more."
  }
}

variable "startup_seconds" {
  type        = number
  description = "Until a container whose /ping does not answer 200 counts as broken."
  default     = 600

  validation {
    condition     = var.startup_seconds >= 60 && var.startup_seconds <= 3600
    error_message = "SageMaker allows 60 to 3600 seconds."
  }
}

variable "env" {
  type        = map(string)
  description = "Variables of the server. They are in the state in plain text, and SageMaker has no references to secrets: use the role instead of keys."
  default     = {}

  validation {
    condition     = alltrue([for name in keys(var.env) : can(regex("^[A-Za-z_][A-Za-z0-9_]*$", name)) && name != "PORT"])
    error_message = "A variable's name has letters, digits and underscores; PORT is 8080, as SageMaker wants."
  }
}

variable "subnets" {
  type        = list(string)
  description = "Subnets, to run in a VPC. Empty: SageMaker's own network."
  default     = []
}

variable "security_group_ids" {
  type        = list(string)
  description = "Security groups in that VPC."
  default     = []
}

variable "kms_key_arn" {
  type        = string
  description = "Key of the instance's storage. Empty: AWS's own. Types with local NVMe take none."
  default     = ""
}

variable "success_topic_arn" {
  type        = string
  description = "SNS topic that hears of answers. Empty: none."
  default     = ""
}

variable "error_topic_arn" {
  type        = string
  description = "SNS topic that hears of failures. Empty: none."
  default     = ""
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything."
  default     = {}
}
